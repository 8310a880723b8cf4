"""A crowd that asks, leaves and errs, beside faults all along: what stays, grows or goes wrong."""

"""Several loop processes of one entry."""

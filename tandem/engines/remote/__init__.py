"""An engine that is a model of other Triton servers, which it calls over gRPC."""

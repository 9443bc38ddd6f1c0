"""Where vectors come from: packaged models, context encoders, token tables, contexts."""

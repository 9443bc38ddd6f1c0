"""Chat models: conversations in, answers out."""

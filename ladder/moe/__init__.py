"""The mixture-of-experts core: jax only, no files, no loggers, no notion of rank."""

"""Place runs and drive a ladder: the only package that imports ray, and only inside `gang`."""

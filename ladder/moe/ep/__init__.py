"""Moving tokens to their experts and back."""

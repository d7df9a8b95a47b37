"""What a person sees of a ladder: one self-contained page, and the same figures as files."""

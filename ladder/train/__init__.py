"""Training one run on one gang of hosts."""

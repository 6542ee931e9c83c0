"""What the switches are made of."""

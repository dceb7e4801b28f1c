"""What master and nodes say to each other."""

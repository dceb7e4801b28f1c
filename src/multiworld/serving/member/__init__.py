"""A member of a deployment, replica or gateway: what the controller and it say to each other, and what it then does."""

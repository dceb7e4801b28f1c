"""What programs ask of their launcher."""

"""What a program may ask of the launcher that started it."""

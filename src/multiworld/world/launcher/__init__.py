"""What the launcher and a process that it started tell each other."""

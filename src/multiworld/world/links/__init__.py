"""Links to the peer processes: who they are, what is said, and the connections of each world."""

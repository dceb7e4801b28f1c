"""What follows when members are lost or come: who then has which layers, what has to be moved, and what it costs."""

"""How the agents of a job find each other: one interface, and a registry of its kinds."""

"""How requests travel between members: packets, edges, who holds each request, and which replica gets it next."""

"""Join a world: meet its members in a store, form one generation, and try again where the launcher says so."""

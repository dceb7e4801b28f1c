"""The operations on a world: checked, started, combined and waited for, from coroutines and from threads."""

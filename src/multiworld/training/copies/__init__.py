"""Copies of sharded state in the memory of hosts: a training that lost all owners of a shard goes on from them."""

"""The processes of a deployment on each host: forked, watched and ended by one, on a controller's orders."""

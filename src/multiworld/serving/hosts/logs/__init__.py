"""What members write: to the output of the host, into files, and the last lines for those who ask."""

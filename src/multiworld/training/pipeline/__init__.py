"""Train one model as several pipelines: each member holds a range of layers, and computes it for its pipeline."""

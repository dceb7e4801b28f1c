"""The properties that cutting a model has for any costs and shapes."""

"""Which node trains which layers: templates of pipelines, instances of them, and what follows a loss. Pure."""

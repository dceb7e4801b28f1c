"""Where requests enter a pipeline and its answers leave it: admission, deadlines, one answer for each request."""

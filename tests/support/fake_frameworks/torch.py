"""In place of the real one, where that is installed: there is none."""
raise ImportError("none")

"""Files of any program within limits: bytes, text, JSON, YAML and CSV; what they seem to be; and which files ship with hosim."""

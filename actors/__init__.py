"""The Ray actors of a prefill instance, imported as `asap_ray.actors`."""

if __name__ == "actors":
    raise ImportError("import asap_ray.actors: this folder is installed under that name (pip install -e .)")

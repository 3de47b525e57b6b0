"""Models of the diffusers library: denoisers, autoencoders, and a pipeline of them as one module.

``recipes.yaml`` has a tiny configuration for each class, ``inputs`` generates arguments from configurations, ``steps`` turns a scheduler
into numbers, and ``pipeline`` is Stable Diffusion from a text's tokens to the image. diffusers is imported only where a model is built or
loaded.
"""

"""Real inputs for checkpoints: texts, pictures, films and sounds, prepared by the processor that the checkpoint ships."""

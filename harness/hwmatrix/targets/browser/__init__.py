"""WebGPU and WebNN in headless Chromium."""

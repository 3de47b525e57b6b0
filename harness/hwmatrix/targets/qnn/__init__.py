"""QNN: Qualcomm's HTP backend, emulated on x86-64."""

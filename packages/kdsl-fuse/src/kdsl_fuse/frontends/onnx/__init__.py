"""ONNX files as a front door."""

"""What is answered over HTTP: whether the service is well, its metrics, and the console."""

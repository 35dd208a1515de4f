"""Records of builds: written behind the answer, replayed and compared (contract §13)."""

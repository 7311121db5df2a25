"""What is trained: data sets, their partition over clients, and models."""

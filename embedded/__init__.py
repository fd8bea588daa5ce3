"""A real Apache Kafka broker as a child process, and what it and Spark need: Java, jars, Ivy."""

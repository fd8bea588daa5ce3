"""A real Apache Kafka broker as a child process, and the Java, jars and Ivy that it and Spark need."""

"""What a step is: declaring, keys, the graph. Pure, but for `source`, which reads code; knows no store and no scheduling."""

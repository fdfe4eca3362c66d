"""The judge as tools for other agents, over the Model Context Protocol. Its folder ``sdk`` alone imports the SDK."""

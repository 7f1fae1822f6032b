"""Finds nodes RNN, LSTM, GRU and DynamicQuantizeLSTM, and joins the layers of a network."""

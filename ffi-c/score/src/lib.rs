//! libscore.so

// Package excluded has no file for macOS.
package excluded

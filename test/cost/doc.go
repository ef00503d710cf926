// Package cost bounds the cost of validating a request: the worst input that fits into a request,
// for each validator of each kind.
package cost

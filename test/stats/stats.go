// Package stats summarizes measurements.
package stats

import (
	"math"
	"slices"
)

// Number is the type of a measurement, such as time.Duration.
type Number interface{ ~int64 | ~float64 }

// Quantile returns the smallest value that a share q of the values does not exceed, and 0 without
// values. It does not interpolate, so that the result is a value that was measured.
func Quantile[T Number](values []T, q float64) T {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(q * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Median returns the 0.5-quantile.
func Median[T Number](values []T) T { return Quantile(values, 0.5) }

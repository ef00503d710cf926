package stats

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestQuantile(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(100 - i)
	}
	for _, c := range []struct {
		values []float64
		q      float64
		want   float64
	}{
		{nil, 0.5, 0},
		{[]float64{7}, 0, 7},
		{[]float64{7}, 0.5, 7},
		{[]float64{7}, 1, 7},
		{[]float64{3, 1, 2}, 0.5, 2},
		{[]float64{4, 3, 1, 2}, 0.5, 2},
		{[]float64{5, 3, 1, 2, 4}, 0.99, 5},
		{hundred, 0, 1},
		{hundred, 0.5, 50},
		{hundred, 0.99, 99},
		{hundred, 1, 100},
	} {
		assert.Equal(t, c.want, Quantile(c.values, c.q), fmt.Sprint(len(c.values), " values, ", c.q))
	}
}

func TestQuantileKeepsTheOrder(t *testing.T) {
	values := []time.Duration{3 * time.Second, time.Second, 2 * time.Second}
	before := slices.Clone(values)
	assert.Equal(t, 2*time.Second, Median(values))
	assert.Equal(t, before, values)
}

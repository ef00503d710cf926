package main

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDrawCharts(t *testing.T) {
	svg := drawCharts("Macs", []chart{
		{"CPU <idle>", []line{{"ours", []point{{500, 0.05}, {5000, 0.4}}}, {"etcd & more", []point{{500, 0.01}, {5000, 0.1}}}}},
		{"nothing", []line{{"ours", []point{{0, 0}}}}},
	})
	circles, decoder := 0, xml.NewDecoder(strings.NewReader(svg))
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if start, ok := token.(xml.StartElement); ok && start.Name.Local == "circle" {
			circles++
		}
	}
	assert.Equal(t, 5, circles, "one for each point")
	for _, text := range []string{"CPU &lt;idle&gt;", "etcd &amp; more", ">5000<", ">0.4<", ">Macs<"} {
		assert.Contains(t, svg, text)
	}
	assert.NotContains(t, svg, "NaN")
	assert.NotContains(t, svg, "Inf")
}

func TestTick(t *testing.T) {
	for highest, want := range map[float64]float64{0: 1, 0.4: 0.1, 1: 0.2, 5: 1, 5000: 1000, 900: 200, 1100: 500, 0.03: 0.01} {
		assert.InDelta(t, want, tick(highest), want/1e6, "%g", highest)
	}
}

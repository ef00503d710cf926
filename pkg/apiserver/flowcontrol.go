package apiserver

import (
	"context"

	"k8s.io/client-go/kubernetes"

	"macrack.io/macrack/pkg/apiserver/flowcontrol"
)

// applyFlowControl makes the server apply the flow control objects of MacRack while it runs. A
// server without a cluster has none.
func (c *Config) applyFlowControl(background *background) error {
	if c.Generic.ClientConfig == nil {
		return nil
	}
	client, err := kubernetes.NewForConfig(c.Generic.ClientConfig)
	if err != nil {
		return err
	}
	objects, err := flowcontrol.Objects()
	if err != nil {
		return err
	}
	return background.whileServing("macrack-flow-control", func(ctx context.Context) {
		flowcontrol.Run(ctx, client.FlowcontrolV1(), c.Clock, objects)
	})
}
